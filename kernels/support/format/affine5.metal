// A packet of 5-bit affine weights: 20 bytes, 32 columns. A weight is the quantized value times its group's
// scale, plus the group's offset. Four words hold the lower bits in the layout of affine4. Bit 2i + h of byte
// j of the fifth is the highest bit of column 4i + j + 16h.
struct Affine5 {
    uint4 nibbles;
    uint highest;
};

inline Affine5 affine5_at(device const uint* codes, uint packet) {
    device const uint* words = codes + 5u * packet;
    Affine5 found;
    found.nibbles = uint4(words[0], words[1], words[2], words[3]);
    found.highest = words[4];
    return found;
}

// Half a packet: words 0 and 1, or words 2 and 3 in their place.
inline Affine5 affine5_half(device const uint* codes, uint packet, uint part) {
    device const uint* words = codes + 5u * packet;
    Affine5 found;
    found.nibbles = uint4(words[2u * part], words[2u * part + 1u], 0u, 0u);
    found.highest = words[4] >> (4u * part);
    return found;
}

// The values of word i, one byte each: columns 4i .. 4i + 3, and those 16 further.
inline uint2 affine5_bytes(Affine5 packet, uint i) {
    const uint nibbles = packet.nibbles[i];
    const uint highest = packet.highest >> (2u * i);
    return uint2((nibbles & 0x0f0f0f0fu) | ((highest & 0x01010101u) << 4u),
                 ((nibbles >> 4u) & 0x0f0f0f0fu) | (((highest >> 1u) & 0x01010101u) << 4u));
}

// Word i: columns 4i .. 4i + 3, and those 16 further.
inline void affine5_word(Affine5 packet, uint i, thread float4& low, thread float4& high) {
    const uint2 bytes = affine5_bytes(packet, i);
    low = affine8_word(bytes.x);
    high = affine8_word(bytes.y);
}

inline void affine5_decode(Affine5 packet, thread float4* codes) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        affine5_word(packet, i, codes[i], codes[i + 4u]);
    }
}
