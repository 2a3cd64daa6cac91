// A word of eight nibbles as bytes with signs, 16 · (nibble - 8) each: those of its low nibbles, and those of its high ones, 16 columns
// further. 8 less turns a nibble's highest bit, where it is the byte's.
inline uint2 nibbles_as_bytes(uint word) {
    return uint2((word << 4u & 0xf0f0f0f0u) ^ 0x80808080u, (word & 0xf0f0f0f0u) ^ 0x80808080u);
}
