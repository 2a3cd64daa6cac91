// The entries of four nibbles, one in each byte, plus 128. Targets with an instruction for it replace this body.
//
// The table is -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113, four in a word.
#ifndef OWN_IQ4_BYTES
inline uint iq4_byte(uint code) {
    const uint low = (code & 4u) != 0u ? 0x766a5d4fu : 0x3f2d1801u;
    const uint high = (code & 4u) != 0u ? 0xf1d9c5b5u : 0xa6998d81u;
    return (((code & 8u) != 0u ? high : low) >> ((code & 3u) * 8u)) & 0xffu;
}

inline uint iq4_bytes(uint codes) {
    const uint low = iq4_byte(codes & 15u) | iq4_byte((codes >> 8u) & 15u) << 8u;
    return low | iq4_byte((codes >> 16u) & 15u) << 16u | iq4_byte(codes >> 24u) << 24u;
}
#endif

// Four entries. Bytes are set as the low bits of the half 1024.0, which is subtracted together with the 128.
inline float4 iq4_entries(uint word) {
    const half2 even = as_type<half2>((word & 0x00ff00ffu) | 0x64006400u) - half2(1152.0h);
    const half2 odd = as_type<half2>(((word >> 8u) & 0x00ff00ffu) | 0x64006400u) - half2(1152.0h);
    return float4(half4(even.x, odd.x, even.y, odd.y));
}

// A word of iq4_nl or iq4_xs weights: 4 bytes, 8 columns, in the layout of q4_0. A weight is the entry of its
// nibble times its block's scale.
inline void iq4_word(uint word, thread float4& low, thread float4& high) {
    low = iq4_entries(iq4_bytes(word & 0x0f0f0f0fu));
    high = iq4_entries(iq4_bytes((word >> 4u) & 0x0f0f0f0fu));
}

// A packet of iq4_nl or iq4_xs weights: 16 bytes, 32 columns, one block.
inline void iq4_decode(uint4 packet, thread float4* weights) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        iq4_word(packet[i], weights[i], weights[i + 4u]);
    }
}
