// Converts an mxfp4 exponent to the scale 2^(exponent - 127), times 2^14 to compensate for the values below.
// The compiler rejects exponent 255 (NaN). Exponents from 240 on only occur with zeros.
inline float mxfp4_scale(uchar exponent) {
    return as_type<float>(min(uint(exponent) + 14u, 254u) << 23u);
}

// A word of mxfp4 weights: 4 bytes, 8 columns, in the layout of q4_0. A weight is a 4-bit float times its
// block's scale.
//
// A 4-bit float has a sign, two exponent bits and one fraction bit. Set as the bits of a half, whose exponent
// bias is larger by 14, it is the same number times 2^-14, subnormals included. Widening a half is exact.
inline void mxfp4_word(uint even, thread float4& low, thread float4& high) {
    const uint odd = even >> 8u;
    const half2 low_even = as_type<half2>((even & 0x00070007u) << 9u | (even & 0x00080008u) << 12u);
    const half2 low_odd = as_type<half2>((odd & 0x00070007u) << 9u | (odd & 0x00080008u) << 12u);
    const half2 high_even = as_type<half2>((even & 0x00700070u) << 5u | (even & 0x00800080u) << 8u);
    const half2 high_odd = as_type<half2>((odd & 0x00700070u) << 5u | (odd & 0x00800080u) << 8u);
    low = float4(half4(low_even.x, low_odd.x, low_even.y, low_odd.y));
    high = float4(half4(high_even.x, high_odd.x, high_even.y, high_odd.y));
}

// A packet of mxfp4 weights: 16 bytes, 32 columns, one block.
inline void mxfp4_decode(uint4 packet, thread float4* weights) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        mxfp4_word(packet[i], weights[i], weights[i + 4u]);
    }
}
