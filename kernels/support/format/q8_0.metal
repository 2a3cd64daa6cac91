// A word of q8_0 weights: 4 bytes, 4 columns. A weight is the quantized value times its block's scale.
//
// Integer conversion costs four times as much as masking. Therefore values are made unsigned (value + 128)
// and set as the low bits of the half 1024.0, whose last bit is worth 1. The half is 1024 + 128 + value, and
// 1152 is subtracted.
inline float4 q8_0_word(uint word) {
    const uint codes = word ^ 0x80808080u;
    const half2 even = as_type<half2>((codes & 0x00ff00ffu) | 0x64006400u) - half2(1152.0h);
    const half2 odd = as_type<half2>(((codes >> 8u) & 0x00ff00ffu) | 0x64006400u) - half2(1152.0h);
    return float4(half4(even.x, odd.x, even.y, odd.y));
}

// A packet of q8_0 weights: 16 bytes, 16 columns, half a block.
inline void q8_0_decode(uint4 packet, thread float4* weights) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        weights[i] = q8_0_word(packet[i]);
    }
}
