// Scales of the first and second 16 columns of an nvfp4 packet, times 2^14 to compensate for the floats, which are
// decoded as in mxfp4; packets are counted through groups of 4. A group has 3 words: an f32 factor, and two bytes
// for each packet, which are floats of 8 bits.
//
// Set as the bits of a half, such a float is the same number times 2^-8, as in fp8; so the factor is multiplied by
// 2^22. The highest bit is always 0.
inline float2 nvfp4_scales(device const uint* scales, uint packet) {
    device const uint* words = scales + packet / 4u * 3u;
    const uint bytes = words[1u + packet % 4u / 2u] >> (16u * (packet & 1u));
    const half2 counts = as_type<half2>((bytes & 0x7fu) << 7u | (bytes & 0x7f00u) << 15u);
    return as_type<float>(words[0]) * 4194304.0f * float2(counts);
}
