// Quantizes x, one of 32 values in the lanes of a simdgroup, to 8 bits with a shared scale: the largest
// becomes 127. A block of zeros has scale 0 and stays zero.
inline char encode32(float x, thread half* scale) {
    *scale = half(simd_max(fabs(x)) / 127.0f);
    const float step = float(*scale);
    return char(clamp(rint(x / max(step, 1.1754944e-38f)), -127.0f, 127.0f));
}
