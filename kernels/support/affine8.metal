// A packet of affine codes of 8 bits: 16 bytes, 16 columns. The weight is the code times its group's scale, plus its
// group's offset.
//
// Codes are set as the low bits of the half 1024.0, whose last bit is worth 1, as those of q8_0 are.
inline void affine8_decode(uint4 packet, thread float4* codes) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        const half2 even = as_type<half2>((packet[i] & 0x00ff00ffu) | 0x64006400u) - half2(1024.0h);
        const half2 odd = as_type<half2>(((packet[i] >> 8u) & 0x00ff00ffu) | 0x64006400u) - half2(1024.0h);
        codes[i] = float4(half4(even.x, odd.x, even.y, odd.y));
    }
}
