// The code of x, one of 32 numbers that the lanes of a simdgroup have, and the scale that they share: the largest takes 127. Zeros
// have a scale of 0, and whatever they are divided by they stay zeros.
inline char encode32(float x, thread half* scale) {
    *scale = half(simd_max(fabs(x)) / 127.0f);
    const float step = float(*scale);
    return char(clamp(rint(x / max(step, 1.1754944e-38f)), -127.0f, 127.0f));
}
