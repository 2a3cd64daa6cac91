// 1 / (1 + exp(-x)). Below -80 the result is 0 for any sum that it goes into, and exp stays finite.
inline float sigmoid(float x) {
    return 1.0f / (1.0f + exp(-max(x, -80.0f)));
}
