// A packet of 3-bit affine weights: 12 bytes, 32 columns. A weight is the quantized value times its group's
// scale, plus the group's offset. Two words hold the lower bits in the layout of affine2. Bit 2i + h of byte
// j of the third is the highest bit of column 4i + j + 16h.
struct Affine3 {
    uint2 pairs;
    uint highest;
};

inline Affine3 affine3_at(device const uint* codes, uint packet) {
    device const uint* words = codes + 3u * packet;
    Affine3 found;
    found.pairs = uint2(words[0], words[1]);
    found.highest = words[2];
    return found;
}

// Half a packet: words 0 and 1, or words 2 and 3 in their place.
inline Affine3 affine3_half(device const uint* codes, uint packet, uint part) {
    device const uint* words = codes + 3u * packet;
    Affine3 found;
    found.pairs = uint2(words[part], 0u);
    found.highest = words[2] >> (4u * part);
    return found;
}

// The values of word i, one byte each: columns 4i .. 4i + 3, and those 16 further.
inline uint2 affine3_bytes(Affine3 packet, uint i) {
    const uint pairs = (i < 2u ? packet.pairs.x : packet.pairs.y) >> (4u * (i & 1u));
    const uint highest = packet.highest >> (2u * i);
    return uint2((pairs & 0x03030303u) | ((highest & 0x01010101u) << 2u),
                 ((pairs >> 2u) & 0x03030303u) | (((highest >> 1u) & 0x01010101u) << 2u));
}

// Word i: columns 4i .. 4i + 3, and those 16 further.
inline void affine3_word(Affine3 packet, uint i, thread float4& low, thread float4& high) {
    const uint2 bytes = affine3_bytes(packet, i);
    low = affine8_word(bytes.x);
    high = affine8_word(bytes.y);
}

inline void affine3_decode(Affine3 packet, thread float4* codes) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        affine3_word(packet, i, codes[i], codes[i + 4u]);
    }
}
