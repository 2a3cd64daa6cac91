// Four values, one byte each, minus 4. Bytes are set as the low bits of the half 1024.0, which is subtracted
// together with the 4.
inline float4 q3_k_codes(uint word) {
    const half2 even = as_type<half2>((word & 0x00ff00ffu) | 0x64006400u) - half2(1028.0h);
    const half2 odd = as_type<half2>(((word >> 8u) & 0x00ff00ffu) | 0x64006400u) - half2(1028.0h);
    return float4(half4(even.x, odd.x, even.y, odd.y));
}

// Word i: columns 4i .. 4i + 3, and those 16 further.
inline void q3_k_word(Affine3 packet, uint i, thread float4& low, thread float4& high) {
    const uint2 bytes = affine3_bytes(packet, i);
    low = q3_k_codes(bytes.x);
    high = q3_k_codes(bytes.y);
}

// A packet of q3_k weights: the values of affine3 minus 4. Scales are those of q6_k.
inline void q3_k_decode(Affine3 packet, thread float4* codes) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        q3_k_word(packet, i, codes[i], codes[i + 4u]);
    }
}
