{# What a score of the tile becomes where its row sees it, which is what `live` says: a weight. #}
{% if softcap %}
            score = live ? softcap(score * {{ scale }}, {{ softcap }}) : -1.0e38f;
{% else %}
            score = live ? score * {{ scale }} : -1.0e38f;
{% endif %}
            const float highest = max(maximum[i], simd_max(score));
            const float keep = exp(maximum[i] - highest);
            const float weight = live ? exp(score - highest) : 0.0f;
            total[i] = total[i] * keep + simd_sum(weight);
            maximum[i] = highest;
            scores[r * 36u + lane] = weight;
            if (lane == 0u) {
                decay[r * 9u] = keep;
            }
