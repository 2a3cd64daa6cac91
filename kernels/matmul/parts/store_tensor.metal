{# Writes sums to threadgroup memory. An element's place is its output and its row in the tile. #}
#pragma unroll
for (ushort i = 0; i < sums.get_capacity(); i++) {
    const auto place = sums.get_multidimensional_index(i);
{% if parts > 1 %}
    const uint sum_row = uint(place[1]) - begin;
    if (sums.is_valid_element(i) && sum_row < {{ part_rows }}u) {
        memory[sum_row * {{ tile_outputs + 4 }}u + uint(place[0])] = sums[i];
    }
{% else %}
    if (sums.is_valid_element(i)) {
        memory[uint(place[1]) * {{ tile_outputs + 4 }}u + uint(place[0])] = sums[i];
    }
{% endif %}
}
