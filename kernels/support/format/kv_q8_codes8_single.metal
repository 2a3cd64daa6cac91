// Eight codes of a q8_0 KV record whose width is a multiple of 32.
inline uint2 codes8_single(device const uchar* codes) {
    device const ushort* two = (device const ushort*)codes;
    return uint2(uint(two[0]) | uint(two[1]) << 16u, uint(two[2]) | uint(two[3]) << 16u);
}
