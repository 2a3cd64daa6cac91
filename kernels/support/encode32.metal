// The code of x, one of 32 numbers that the lanes of a simdgroup have, and the scale that they share: the largest takes 127.
inline char encode32(float x, thread half* scale) {
    *scale = half(simd_max(fabs(x)) / 127.0f);
    const float step = float(*scale);
    return step > 0.0f ? char(clamp(rint(x / step), -127.0f, 127.0f)) : char(0);
}
