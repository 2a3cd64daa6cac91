// Quantized rows of x for integer MMA. Four rows and four blocks of 32 columns share 288 words: 256 of codes as
// fragments of right factors, the scale of each row and block, and the sum of its codes.

// The words of a row and a block. Rows have `stretches` times four blocks.
inline device uint* four_blocks(device uint* quantized, uint stretches, uint row, uint block) {
    return quantized + (row / 4u * stretches + block / 4u) * 288u;
}

// Stores the upper and lower bytes of columns 4 `word` to 4 `word` + 3 of a block.
inline void store_codes(device uint* four, uint row, uint block, uint word, uint upper, uint lower) {
    const uint b = block % 4u;
    const uint place = b / 2u * 128u + row % 4u * 32u + word % 4u * 4u + b % 2u * 2u + word / 4u;
    four[place] = upper;
    four[place + 16u] = lower;
}

// Stores the scale of a row's block, and the sum of its codes.
inline void store_scale(device uint* four, uint row, uint block, float scale, int sum) {
    const uint place = row % 4u * 4u + block % 4u;
    four[256u + place] = as_type<uint>(scale);
    four[272u + place] = as_type<uint>(sum);
}
