// A packet of 2-bit affine weights: 8 bytes, 32 columns. A weight is the quantized value times its group's
// scale, plus the group's offset. Byte j of word k holds, from the lowest bits on, columns 8k + j, 8k + j +
// 16, 8k + j + 4 and 8k + j + 20.
struct Affine2 {
    uint2 pairs;
};

inline Affine2 affine2_at(device const uint2* codes, uint packet) {
    Affine2 found;
    found.pairs = codes[packet];
    return found;
}

// Half a packet: words 0 and 1, or words 2 and 3 in their place.
inline Affine2 affine2_half(device const uint2* codes, uint packet, uint part) {
    Affine2 found;
    const uint2 pairs = codes[packet];
    found.pairs = uint2(part == 0u ? pairs.x : pairs.y, 0u);
    return found;
}

// Word i: columns 4i .. 4i + 3, and those 16 further.
inline void affine2_word(Affine2 packet, uint i, thread float4& low, thread float4& high) {
    const uint pairs = (i < 2u ? packet.pairs.x : packet.pairs.y) >> (4u * (i & 1u));
    low = affine8_word(pairs & 0x03030303u);
    high = affine8_word((pairs >> 2u) & 0x03030303u);
}

inline void affine2_decode(Affine2 packet, thread float4* codes) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        affine2_word(packet, i, codes[i], codes[i + 4u]);
    }
}
