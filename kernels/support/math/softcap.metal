// cap * tanh(x / cap). tanh is a quotient of polynomials, accurate to 3 units in the last place, without
// overflow or cancellation for small x. From 7.9 on tanh is 1 in f32.
inline float softcap(float x, float cap) {
    const float t = clamp(x / cap, -7.9053111f, 7.9053111f);
    const float s = t * t;
    float over = -2.7607685e-16f;
    over = over * s + 2.000188e-13f;
    over = over * s - 8.604672e-11f;
    over = over * s + 5.122297e-8f;
    over = over * s + 1.4857224e-5f;
    over = over * s + 6.3726194e-4f;
    over = over * s + 4.8935246e-3f;
    float under = 1.1982584e-6f;
    under = under * s + 1.185347e-4f;
    under = under * s + 2.2684347e-3f;
    under = under * s + 4.8935253e-3f;
    return cap * (t * over / under);
}
