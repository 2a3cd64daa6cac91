// The scale of fp8 weights, times 2^8 to compensate for the values below.
inline float fp8_scale(float scale) {
    return scale * 256.0f;
}

// A word of fp8 weights: 4 bytes, 4 columns. A weight is an 8-bit float times its group's scale.
//
// An 8-bit float has a sign, four exponent bits and three fraction bits. Set as the bits of a half, whose
// exponent bias is larger by 8, it is the same number times 2^-8, subnormals included. Widening a half is exact.
inline float4 fp8_word(uint word) {
    const uint odd = word >> 8u;
    const half2 low = as_type<half2>((word & 0x007f007fu) << 7u | (word & 0x00800080u) << 8u);
    const half2 high = as_type<half2>((odd & 0x007f007fu) << 7u | (odd & 0x00800080u) << 8u);
    return float4(half4(low.x, high.x, low.y, high.y));
}

// A packet of fp8 weights: 16 bytes, 16 columns.
inline void fp8_decode(uint4 packet, thread float4* weights) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        weights[i] = fp8_word(packet[i]);
    }
}
