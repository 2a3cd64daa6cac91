// Operations between the lanes of a simdgroup. Every lane writes its value; the first that goes on
// computes what is common to all.
#pragma once

namespace metal {
struct simd_vote {
    ulong bits;
    explicit inline __attribute__((always_inline)) operator ulong() const { return bits; }
    inline bool all() const { return bits == 0xfffffffful; }
    inline bool any() const { return bits != 0; }
};

template <class T> FORGE_INLINE T forge_lane(const forge_simd_values* values, uint lane) {
    T value;
    __builtin_memcpy(&value, values->value[lane], sizeof(T));
    return value;
}

// Lanes are combined as a tree, as hardware does: neighbors first.
#define FORGE_REDUCE(name, T_combine)                                                        \
    template <class T> FORGE_OUTLINED T name(T own) {                                        \
        forge_simd_values* values = forge_exchange(&own, sizeof(T), FORGE_HERE);             \
        T part[32];                                                                          \
        if (!values->ready) {                                                                \
            uint count = values->lanes;                                                      \
            for (uint i = 0; i < count; i++) part[i] = forge_lane<T>(values, i);             \
            for (uint step = 1; step < count; step *= 2)                                     \
                for (uint i = 0; i + step < count; i += 2 * step) {                          \
                    T a = part[i], b = part[i + step];                                       \
                    part[i] = (T_combine);                                                   \
                }                                                                            \
            __builtin_memcpy(values->result, part, sizeof(T));                               \
            values->ready = 1;                                                               \
        }                                                                                    \
        __builtin_memcpy(part, values->result, sizeof(T));                                   \
        return part[0];                                                                      \
    }
FORGE_REDUCE(simd_sum, T(a + b))
FORGE_REDUCE(simd_product, T(a * b))
FORGE_REDUCE(simd_min, min(a, b))
FORGE_REDUCE(simd_max, max(a, b))
FORGE_REDUCE(simd_and, T(a & b))
FORGE_REDUCE(simd_or, T(a | b))
FORGE_REDUCE(simd_xor, T(a ^ b))

#define FORGE_PREFIX(name, last, T_zero, T_combine)                                          \
    template <class T> FORGE_OUTLINED T name(T own) {                                        \
        forge_simd_values* values = forge_exchange(&own, sizeof(T), FORGE_HERE);             \
        uint lane = values->lane;                                                            \
        T a = T(T_zero);                                                                     \
        for (uint i = 0; i < lane + last; i++) {                                             \
            T b = forge_lane<T>(values, i);                                                  \
            a = (T_combine);                                                                 \
        }                                                                                    \
        return a;                                                                            \
    }
FORGE_PREFIX(simd_prefix_inclusive_sum, 1, 0, T(a + b))
FORGE_PREFIX(simd_prefix_exclusive_sum, 0, 0, T(a + b))
FORGE_PREFIX(simd_prefix_inclusive_product, 1, 1, T(a * b))
FORGE_PREFIX(simd_prefix_exclusive_product, 0, 1, T(a * b))

// What a lane takes from another. `from` may be any expression of `lane`, `count` and the argument; a lane that
// reaches beyond the simdgroup keeps its own value.
#define FORGE_SHUFFLE(name, argument, from)                                                  \
    template <class T> FORGE_OUTLINED T name(T own, ushort argument) {                       \
        forge_simd_values* values = forge_exchange(&own, sizeof(T), FORGE_HERE);             \
        uint lane = values->lane, count = values->lanes, source = (from);                    \
        return source < count ? forge_lane<T>(values, source) : own;                         \
    }
FORGE_SHUFFLE(simd_shuffle, source_lane, uint(source_lane))
FORGE_SHUFFLE(simd_broadcast, source_lane, uint(source_lane))
FORGE_SHUFFLE(simd_shuffle_xor, mask, lane ^ uint(mask))
FORGE_SHUFFLE(simd_shuffle_up, delta, lane - uint(delta))
FORGE_SHUFFLE(simd_shuffle_down, delta, lane + uint(delta))
FORGE_SHUFFLE(simd_shuffle_rotate_up, delta, (lane + count - uint(delta) % count) % count)
FORGE_SHUFFLE(simd_shuffle_rotate_down, delta, (lane + uint(delta)) % count)
FORGE_SHUFFLE(quad_shuffle, source_lane, (lane & ~3u) + (uint(source_lane) & 3u))
FORGE_SHUFFLE(quad_broadcast, source_lane, (lane & ~3u) + (uint(source_lane) & 3u))
FORGE_SHUFFLE(quad_shuffle_xor, mask, lane ^ (uint(mask) & 3u))

template <class T> FORGE_OUTLINED T simd_broadcast_first(T own) {
    return forge_lane<T>(forge_exchange(&own, sizeof(T), FORGE_HERE), 0);
}
template <class T> FORGE_OUTLINED T simd_shuffle_and_fill_up(T own, T fill, ushort delta) {
    T both[2] = {own, fill};
    static_assert(sizeof(both) <= 32, "too wide to be shuffled");
    forge_simd_values* values = forge_exchange(both, sizeof(both), FORGE_HERE);
    uint lane = values->lane, count = values->lanes;
    __builtin_memcpy(both, values->value[lane >= delta ? lane - delta : (count + lane - delta) % count], sizeof(both));
    return lane >= delta ? both[0] : both[1];
}
template <class T> FORGE_OUTLINED T simd_shuffle_and_fill_down(T own, T fill, ushort delta) {
    T both[2] = {own, fill};
    static_assert(sizeof(both) <= 32, "too wide to be shuffled");
    forge_simd_values* values = forge_exchange(both, sizeof(both), FORGE_HERE);
    uint lane = values->lane, count = values->lanes;
    __builtin_memcpy(both, values->value[(lane + delta) % count], sizeof(both));
    return lane + delta < count ? both[0] : both[1];
}

FORGE_OUTLINED ulong forge_vote(bool own, void* where) {
    uint word = own;
    forge_simd_values* values = forge_exchange(&word, sizeof(word), where);
    ulong bits = 0;
    for (uint i = 0; i < values->lanes; i++) bits |= ulong(forge_lane<uint>(values, i)) << i;
    return bits;
}
FORGE_OUTLINED ulong forge_everyone(void* where) {
    uint word = 0;
    return (1ul << forge_exchange(&word, sizeof(word), where)->lanes) - 1ul;
}
FORGE_OUTLINED simd_vote simd_ballot(bool own) { return simd_vote{forge_vote(own, FORGE_HERE)}; }
FORGE_OUTLINED simd_vote simd_active_threads_mask() { return simd_vote{forge_everyone(FORGE_HERE)}; }
FORGE_OUTLINED bool simd_any(bool own) { return forge_vote(own, FORGE_HERE) != 0; }
FORGE_OUTLINED bool simd_all(bool own) { return forge_vote(!own, FORGE_HERE) == 0; }
FORGE_OUTLINED bool simd_is_first() {
    uint word = 0;
    return forge_exchange(&word, sizeof(word), FORGE_HERE)->lane == 0;
}

// Sums and extremes over four neighboring lanes.
#define FORGE_QUAD(name, T_combine)                                                          \
    template <class T> FORGE_OUTLINED T name(T own) {                                        \
        forge_simd_values* values = forge_exchange(&own, sizeof(T), FORGE_HERE);             \
        uint first = values->lane & ~3u;                                                     \
        T a = forge_lane<T>(values, first);                                                  \
        for (uint i = 1; i < 4 && first + i < values->lanes; i++) {                          \
            T b = forge_lane<T>(values, first + i);                                          \
            a = (T_combine);                                                                 \
        }                                                                                    \
        return a;                                                                            \
    }
FORGE_QUAD(quad_sum, T(a + b))
FORGE_QUAD(quad_min, min(a, b))
FORGE_QUAD(quad_max, max(a, b))
}
