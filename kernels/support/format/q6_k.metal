// Four values, one byte each, minus 32, which is subtracted together with 1024.
inline float4 q6_k_codes(uint word) {
    const half2 even = as_type<half2>((word & 0x00ff00ffu) | 0x64006400u) - half2(1056.0h);
    const half2 odd = as_type<half2>(((word >> 8u) & 0x00ff00ffu) | 0x64006400u) - half2(1056.0h);
    return float4(half4(even.x, odd.x, even.y, odd.y));
}

// Word i: columns 4i .. 4i + 3, and those 16 further.
inline void q6_k_word(Affine6 packet, uint i, thread float4& low, thread float4& high) {
    const uint2 bytes = affine6_bytes(packet, i);
    low = q6_k_codes(bytes.x);
    high = q6_k_codes(bytes.y);
}

// A packet of q6_k weights: the values of affine6 minus 32.
inline void q6_k_decode(Affine6 packet, thread float4* codes) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        q6_k_word(packet, i, codes[i], codes[i + 4u]);
    }
}
