// A packet of 6-bit affine weights: 24 bytes, 32 columns. A weight is the quantized value times its group's
// scale, plus the group's offset. Four words hold the lower bits in the layout of affine4, two the higher
// bits in that of affine2.
struct Affine6 {
    uint4 nibbles;
    uint2 pairs;
};

inline Affine6 affine6_at(device const uint2* codes, uint packet) {
    device const uint2* words = codes + 3u * packet;
    const uint2 first = words[0];
    const uint2 second = words[1];
    Affine6 found;
    found.nibbles = uint4(first.x, first.y, second.x, second.y);
    found.pairs = words[2];
    return found;
}

// Half a packet: words 0 and 1, or words 2 and 3 in their place.
inline Affine6 affine6_half(device const uint2* codes, uint packet, uint part) {
    device const uint2* words = codes + 3u * packet;
    const uint2 nibbles = words[part];
    const uint2 pairs = words[2];
    Affine6 found;
    found.nibbles = uint4(nibbles.x, nibbles.y, 0u, 0u);
    found.pairs = uint2(part == 0u ? pairs.x : pairs.y, 0u);
    return found;
}

// Word i, one byte per value: columns 4i .. 4i + 3, and those 16 further.
inline uint2 affine6_bytes(Affine6 packet, uint i) {
    const uint nibbles = packet.nibbles[i];
    const uint pairs = (i < 2u ? packet.pairs.x : packet.pairs.y) >> (4u * (i & 1u));
    const uint low = (nibbles & 0x0f0f0f0fu) | ((pairs & 0x03030303u) << 4u);
    const uint high = ((nibbles >> 4u) & 0x0f0f0f0fu) | (((pairs >> 2u) & 0x03030303u) << 4u);
    return uint2(low, high);
}

inline void affine6_word(Affine6 packet, uint i, thread float4& low, thread float4& high) {
    const uint2 bytes = affine6_bytes(packet, i);
    low = affine8_word(bytes.x);
    high = affine8_word(bytes.y);
}

inline void affine6_decode(Affine6 packet, thread float4* codes) {
    #pragma unroll
    for (uint i = 0u; i < 4u; i++) {
        affine6_word(packet, i, codes[i], codes[i + 4u]);
    }
}
