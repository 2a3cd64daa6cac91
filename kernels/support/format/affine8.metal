// A word of 8-bit affine weights: 4 bytes, 4 columns. A weight is the quantized value times its group's
// scale, plus the group's offset.
//
// Values are set as the low bits of the half 1024.0, whose last bit is worth 1, as in q8_0.
inline float4 affine8_word(uint word) {
    const half2 even = as_type<half2>((word & 0x00ff00ffu) | 0x64006400u) - half2(1024.0h);
    const half2 odd = as_type<half2>(((word >> 8u) & 0x00ff00ffu) | 0x64006400u) - half2(1024.0h);
    return float4(half4(even.x, odd.x, even.y, odd.y));
}

// A packet of 8-bit affine weights: 16 bytes, 16 columns.
inline void affine8_decode(uint4 packet, thread float4* codes) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        codes[i] = affine8_word(packet[i]);
    }
}
