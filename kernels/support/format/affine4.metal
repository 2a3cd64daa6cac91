// A word of 4-bit affine weights: 4 bytes, 8 columns. A weight is the quantized value times its group's
// scale, plus the group's offset. Of 32 columns, byte j holds column j in its low nibble and column j + 16 in
// its high one.
//
// Nibbles are masked in place and set as the low bits of the half 1024.0, as in q4_0.
inline void affine4_word(uint even, thread float4& low, thread float4& high) {
    const uint odd = even >> 8u;
    const half2 low_even = as_type<half2>((even & 0x000f000fu) | 0x64006400u) - half2(1024.0h);
    const half2 low_odd = as_type<half2>((odd & 0x000f000fu) | 0x64006400u) - half2(1024.0h);
    const half2 high_even = as_type<half2>((even & 0x00f000f0u) | 0x64006400u) * half2(0.0625h) - half2(64.0h);
    const half2 high_odd = as_type<half2>((odd & 0x00f000f0u) | 0x64006400u) * half2(0.0625h) - half2(64.0h);
    low = float4(half4(low_even.x, low_odd.x, low_even.y, low_odd.y));
    high = float4(half4(high_even.x, high_odd.x, high_even.y, high_odd.y));
}

// A packet of 4-bit affine weights: 16 bytes, 32 columns.
inline void affine4_decode(uint4 packet, thread float4* codes) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        affine4_word(packet[i], codes[i], codes[i + 4u]);
    }
}
