// x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), computed as x / (1 + exp(-2 u)). Below -80
// the result is negligible in f32, and exp stays finite.
inline float gelu_tanh(float x) {
    const float twice = 1.5957691f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exp(-max(twice, -80.0f)));
}
