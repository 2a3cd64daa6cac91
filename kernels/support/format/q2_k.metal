// Scales of the first and second 16 columns of a q2_k packet, then their offsets; packets are counted through
// superblocks of 8. A superblock has 5 words: d and dmin in f16, and two bytes for each packet, of which the low
// nibble is s and the high one m. A weight is the quantized value times d * s, minus dmin * m.
//
// Nibbles are set as the low bits of the half 1024.0. The products are exact in f32.
inline float4 q2_k_scales(device const uint* scales, uint packet) {
    device const uint* words = scales + packet / 8u * 5u;
    const float2 units = float2(as_type<half2>(words[0]));
    const uint bytes = words[1u + packet % 8u / 2u] >> (16u * (packet & 1u));
    const uint low = (bytes & 0xfu) | ((bytes & 0xf00u) << 8u);
    const uint high = ((bytes & 0xf0u) >> 4u) | ((bytes & 0xf000u) << 4u);
    const float2 counts = float2(as_type<half2>(low | 0x64006400u) - half2(1024.0h));
    const float2 least = float2(as_type<half2>(high | 0x64006400u) - half2(1024.0h));
    return float4(units.x * counts, -(units.y * least));
}
