// Scales of the first and second 16 columns of a q6_k or q3_k packet; packets are counted through superblocks of 8. A
// superblock has 9 16-bit words: the half d, and two signed bytes for each packet. A weight is (value - 32)
// or (value - 4) times d times its byte.
//
// Bytes are made unsigned and set as the low bits of the half 1024.0, as in q8_0. The products are exact in
// f32.
inline float2 q6_k_scales(device const ushort* scales, uint packet) {
    device const ushort* parts = scales + packet / 8u * 9u;
    const uint bytes = uint(parts[1u + packet % 8u]) ^ 0x8080u;
    const uint spread = (bytes & 0xffu) | ((bytes & 0xff00u) << 8u);
    const float2 counts = float2(as_type<half2>(spread | 0x64006400u) - half2(1152.0h));
    return float(as_type<half>(parts[0])) * counts;
}
