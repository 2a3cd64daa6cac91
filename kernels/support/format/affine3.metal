// A packet of affine codes of 3 bits: 12 bytes, 32 columns. The weight is the code times its group's scale, plus its group's
// offset. Two words hold the lower bits as those of affine2 lie; of the third, bit 2i + h of byte j is the highest bit of
// column 4i + j + 16h.
struct Affine3 {
    uint2 pairs;
    uint singles;
};

inline Affine3 affine3_at(device const uint* codes, uint packet) {
    device const uint* words = codes + 3u * packet;
    Affine3 found;
    found.pairs = uint2(words[0], words[1]);
    found.singles = words[2];
    return found;
}

// The packet's half that holds words 0 and 1 of it, or words 2 and 3, in the place of words 0 and 1.
inline Affine3 affine3_half(device const uint* codes, uint packet, uint part) {
    device const uint* words = codes + 3u * packet;
    Affine3 found;
    found.pairs = uint2(words[part], 0u);
    found.singles = words[2] >> (4u * part);
    return found;
}

// Word i: columns 4i .. 4i + 3, and those 16 further.
inline void affine3_word(Affine3 packet, uint i, thread float4& low, thread float4& high) {
    const uint pairs = (i < 2u ? packet.pairs.x : packet.pairs.y) >> (4u * (i & 1u));
    const uint singles = packet.singles >> (2u * i);
    low = affine8_word((pairs & 0x03030303u) | ((singles & 0x01010101u) << 2u));
    high = affine8_word(((pairs >> 2u) & 0x03030303u) | (((singles >> 1u) & 0x01010101u) << 2u));
}

inline void affine3_decode(Affine3 packet, thread float4* codes) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        affine3_word(packet, i, codes[i], codes[i + 4u]);
    }
}
