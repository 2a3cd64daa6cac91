// Adds to a 64-bit sum in two words, from threads in any order. A thread whose addition overflows the lower
// word adds the carry to the upper word.
inline void add_to(threadgroup atomic_uint* low, threadgroup atomic_uint* high, ulong value) {
    const uint added = uint(value);
    const uint before = atomic_fetch_add_explicit(low, added, memory_order_relaxed);
    const bool carries = before + added < before;
    const uint carried = uint(value >> 32u) + uint(carries);
    const bool is_carried = carried != 0u;
    if (is_carried) {
        atomic_fetch_add_explicit(high, carried, memory_order_relaxed);
    }
}

// The sum, after a barrier.
inline ulong sum_of(threadgroup atomic_uint* low, threadgroup atomic_uint* high) {
    const ulong upper = atomic_load_explicit(high, memory_order_relaxed);
    return (upper << 32u) | atomic_load_explicit(low, memory_order_relaxed);
}

// Upper 64 bits of a 128-bit product.
inline ulong high_word(ulong a, ulong b) {
    const ulong a_low = a & 0xfffffffful;
    const ulong b_low = b & 0xfffffffful;
    const ulong middle = (a >> 32u) * b_low + ((a_low * b_low) >> 32u);
    const ulong other = a_low * (b >> 32u) + (middle & 0xfffffffful);
    return (a >> 32u) * (b >> 32u) + (middle >> 32u) + (other >> 32u);
}

// `parts` / 2^32 of a sum, rounded up.
inline ulong fraction_of(ulong sum, uint parts) {
    const ulong lower = (sum & 0xfffffffful) * parts;
    return (sum >> 32u) * parts + (lower >> 32u) + ulong(uint(lower) != 0u);
}

// 64 random bits from a seed and an index (SplitMix64).
inline ulong random_bits(uint seed_low, uint seed_high, uint index) {
    const ulong seed = (ulong(seed_high) << 32u) | seed_low;
    ulong z = seed + (ulong(index) + 1ul) * 0x9e3779b97f4a7c15ul;
    z = (z ^ (z >> 30u)) * 0xbf58476d1ce4e5b9ul;
    z = (z ^ (z >> 27u)) * 0x94d049bb133111ebul;
    return z ^ (z >> 31u);
}
