// Scale and offset of a packet of q4_k or q5_k; packets are counted through superblocks of 8. A superblock
// has 5 words: the halves d and dmin, and two bytes s and m for each packet. A weight is the quantized value
// times d * s, minus dmin * m.
//
// Bytes are set as the low bits of the half 1024.0. The products are exact in f32.
inline float2 q4_k_scales(device const uint* scales, uint packet) {
    device const uint* words = scales + packet / 8u * 5u;
    const float2 units = float2(as_type<half2>(words[0]));
    const uint bytes = words[1u + packet % 8u / 2u] >> (16u * (packet & 1u));
    const uint spread = (bytes & 0xffu) | ((bytes & 0xff00u) << 8u);
    const float2 counts = float2(as_type<half2>(spread | 0x64006400u) - half2(1024.0h));
    return float2(units.x * counts.x, -(units.y * counts.y));
}
