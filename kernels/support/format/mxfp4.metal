// The scale of an exponent of mxfp4, 2^(exponent - 127), times 2^14: what is taken from it of floats below. An exponent of 255 is no
// number, and the compiler refuses it; from 240 on no float but 0 has a weight that it takes.
inline float mxfp4_scale(uchar exponent) {
    return as_type<float>(min(uint(exponent) + 14u, 254u) << 23u);
}

// A word of mxfp4 codes: 4 bytes, 8 columns. The weight is the float of a code times its block's scale. Columns lie as those of q4_0.
//
// A float has a sign, two bits of exponent and one of fraction. Set as those of a half, whose exponents are above their numbers by 14
// more, it is the same number times 2^-14, the smallest ones included, and widening a half is exact.
inline void mxfp4_word(uint even, thread float4& low, thread float4& high) {
    const uint odd = even >> 8u;
    const half2 low_even = as_type<half2>((even & 0x00070007u) << 9u | (even & 0x00080008u) << 12u);
    const half2 low_odd = as_type<half2>((odd & 0x00070007u) << 9u | (odd & 0x00080008u) << 12u);
    const half2 high_even = as_type<half2>((even & 0x00700070u) << 5u | (even & 0x00800080u) << 8u);
    const half2 high_odd = as_type<half2>((odd & 0x00700070u) << 5u | (odd & 0x00800080u) << 8u);
    low = float4(half4(low_even.x, low_odd.x, low_even.y, low_odd.y));
    high = float4(half4(high_even.x, high_odd.x, high_even.y, high_odd.y));
}

// A packet of mxfp4 codes: 16 bytes, 32 columns, one block.
inline void mxfp4_decode(uint4 packet, thread float4* weights) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        mxfp4_word(packet[i], weights[i], weights[i + 4u]);
    }
}
