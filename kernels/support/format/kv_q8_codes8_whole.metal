// Eight codes of a q8_0 KV record whose width is a multiple of 64, so that its codes are aligned to words.
inline uint2 codes8_whole(device const uchar* codes) {
    return uint2(*(device const uint*)codes, *(device const uint*)(codes + 4u));
}
