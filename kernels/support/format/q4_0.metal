// A word of q4_0 weights: 4 bytes, 8 columns. A weight is (value - 8) times its block's scale. Byte j of a
// block's 16 holds column j in its low nibble and column j + 16 in its high one; word i holds columns 4i ..
// 4i + 3, and those 16 further.
//
// Integer conversion costs four times as much as masking. Therefore nibbles are masked in place and set as
// the low bits of the half 1024.0, whose last bit is worth 1. A low nibble gives 1024 + value, a high one
// 1024 + 16 * value. Subtracting 1024 also subtracts the 8, and every step is exact.
inline void q4_0_word(uint even, thread float4& low, thread float4& high) {
    const uint odd = even >> 8u;
    const half2 low_even = as_type<half2>((even & 0x000f000fu) | 0x64006400u) - half2(1032.0h);
    const half2 low_odd = as_type<half2>((odd & 0x000f000fu) | 0x64006400u) - half2(1032.0h);
    const half2 high_even = as_type<half2>((even & 0x00f000f0u) | 0x64006400u) * half2(0.0625h) - half2(72.0h);
    const half2 high_odd = as_type<half2>((odd & 0x00f000f0u) | 0x64006400u) * half2(0.0625h) - half2(72.0h);
    low = float4(half4(low_even.x, low_odd.x, low_even.y, low_odd.y));
    high = float4(half4(high_even.x, high_odd.x, high_even.y, high_odd.y));
}

// A packet of q4_0 weights: 16 bytes, 32 columns, one block.
inline void q4_0_decode(uint4 packet, thread float4* weights) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        q4_0_word(packet[i], weights[i], weights[i + 4u]);
    }
}
