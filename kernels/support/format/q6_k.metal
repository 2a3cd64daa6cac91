// Scales of the first and second 16 columns of a q6_k packet; packets are counted through superblocks of 8. A
// superblock has 9 16-bit words: the half d, and two signed bytes for each packet. A weight is (value - 32)
// times d times its byte.
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
