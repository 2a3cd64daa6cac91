// x / (1 + exp(-x)). Below -80 the result is negligible in f32, and exp stays finite.
inline float silu(float x) {
    return x / (1.0f + exp(-max(x, -80.0f)));
}
