// A word of q5_0 weights: 8 columns, ordered as in affine5. A weight is the value minus 16, times its block's
// scale. Bytes are set as the low bits of the half 1024.0, which is subtracted together with the 16.
inline float4 q5_0_codes(uint word) {
    const half2 even = as_type<half2>((word & 0x00ff00ffu) | 0x64006400u) - half2(1040.0h);
    const half2 odd = as_type<half2>(((word >> 8u) & 0x00ff00ffu) | 0x64006400u) - half2(1040.0h);
    return float4(half4(even.x, odd.x, even.y, odd.y));
}

// Word i: columns 4i .. 4i + 3, and those 16 further.
inline void q5_0_word(Affine5 packet, uint i, thread float4& low, thread float4& high) {
    const uint2 bytes = affine5_bytes(packet, i);
    low = q5_0_codes(bytes.x);
    high = q5_0_codes(bytes.y);
}

// A packet of q5_0 weights: the values of affine5 minus 16.
inline void q5_0_decode(Affine5 packet, thread float4* codes) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        q5_0_word(packet, i, codes[i], codes[i + 4u]);
    }
}
