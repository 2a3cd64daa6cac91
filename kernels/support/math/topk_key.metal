// The rank of an expert as bits that compare like it: above 0, and above all numbers if it is none.
inline uint rank_key(float rank) {
    const uint key = ordered(rank);
    return key == 0u ? 0xffffffffu : key;
}

// The rank that has this key: keys of ranks from 0 on have the highest bit, in others all bits are turned.
inline float rank_of(uint key) {
    return as_type<float>(key ^ (0x80000000u | ((key >> 31u) - 1u)));
}

// The place of the largest key, the lowest place of equals: lane l has the keys of l, l + 32 and so on. It is taken: its key
// becomes 0, which is below all that are left.
inline uint take_best(thread uint* keys, uint count, uint lane) {
    uint best = 0u;
    uint own = 0xffffffffu;
    #pragma unroll
    for (uint i = 0u; i < count; i++) {
        own = keys[i] > best ? lane + 32u * i : own;
        best = max(best, keys[i]);
    }
    const uint highest = simd_max(best);
    const uint place = simd_min(best == highest ? own : 0xffffffffu);
    #pragma unroll
    for (uint i = 0u; i < count; i++) {
        keys[i] = lane + 32u * i == place ? 0u : keys[i];
    }
    return place;
}
