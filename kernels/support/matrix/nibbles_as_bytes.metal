// Converts a word of eight nibbles to signed bytes, 16 · (nibble - 8) each: those of the low nibbles, and
// those of the high nibbles, 16 columns further. Subtracting 8 flips a nibble's highest bit, which is the
// byte's.
inline uint2 nibbles_as_bytes(uint word) {
    return uint2((word << 4u & 0xf0f0f0f0u) ^ 0x80808080u, (word & 0xf0f0f0f0u) ^ 0x80808080u);
}
