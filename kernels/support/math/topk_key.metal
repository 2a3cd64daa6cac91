// Sort key of an expert's ranking, with the same order: above 0, and above all numbers for NaN.
inline uint rank_key(float rank) {
    const uint key = ordered(rank);
    return key == 0u ? 0xffffffffu : key;
}

// The ranking with this key. Keys of non-negative rankings have the highest bit set; for others all bits are
// flipped.
inline float rank_of(uint key) {
    return as_type<float>(key ^ (0x80000000u | ((key >> 31u) - 1u)));
}

// Removes the largest key and returns its index, the lowest index of equal keys. Lane l has the keys of l, l
// + 32 and so on. The removed key becomes 0, below all others.
inline uint take_best(thread uint* keys, uint count, uint lane) {
    uint best = 0u;
    uint best_place = 0xffffffffu;
    #pragma unroll
    for (uint i = 0u; i < count; i++) {
        best_place = keys[i] > best ? lane + 32u * i : best_place;
        best = max(best, keys[i]);
    }
    const uint highest = simd_max(best);
    const uint place = simd_min(best == highest ? best_place : 0xffffffffu);
    #pragma unroll
    for (uint i = 0u; i < count; i++) {
        keys[i] = lane + 32u * i == place ? 0u : keys[i];
    }
    return place;
}
