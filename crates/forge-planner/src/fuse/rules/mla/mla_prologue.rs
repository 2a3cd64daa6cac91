//! `attend(mla_append(r, c, k)) = attend'(r, c, k)`: decode MLA attention prepares its own queries and
//! cache line.
//!
//! Each threadgroup rotates the queries of its heads. Those with the end of the KV range also compute the new
//! line, which is cheap, and start their softmax from it, so no barrier is needed for the write.
//! Preconditions: one row per pass (two rows of one slot would read each other's lines), and the prepared
//! data fit in threadgroup memory.

use crate::fuse::list::{Fused, Kind, MlaAppend, MlaAttention};
use forge_ir::{Body, LatentCache};
use forge_ops::Format;

pub(crate) fn rewrite(list: &mut Fused, body: &Body) -> bool {
    let fits = |place: &usize| {
        let [append, attend] = &list.operations[*place..*place + 2] else { return false };
        let Kind::MlaAppend(MlaAppend { cache, prepare: Some(_) }) = append.kind else { return false };
        let Kind::MlaAttention(MlaAttention { heads, scale, .. }) = attend.kind else { return false };
        let Some(&LatentCache { width, rope_width }) = body.latents(cache) else { return false };
        let (cache, prologue) = (Format::F32, None);
        attend.inputs.get(1) == Some(&append.output)
            && list.uses(append.output) == 1
            && forge_kernels::latent_prologue_fits(&forge_ops::MlaAttention {
                heads,
                width,
                rope_width,
                cache,
                scale,
                prologue,
            })
    };
    let Some(place) = (0..list.operations.len().saturating_sub(1)).find(fits) else { return false };
    let append = list.operations.remove(place);
    let attend = &mut list.operations[place];
    attend.inputs.truncate(1);
    attend.inputs.extend(append.inputs);
    if let (Kind::MlaAppend(append), Kind::MlaAttention(attend)) = (append.kind, &mut attend.kind) {
        attend.prologue = append.prepare;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::rules::mla::mla_append;
    use crate::fuse::rules::mla::mla_append::tests::mixer;
    use crate::fuse::rules::tests::text;
    use forge_ir::{Param, ParamKind, State};

    fn body(rope_width: usize) -> Body {
        let mut params = vec![Param { name: "any".to_owned(), kind: ParamKind::Weight(vec![1]) }; 9];
        let kind = ParamKind::State(State::Latents(LatentCache { width: 5, rope_width }));
        params.push(Param { name: "cache".to_owned(), kind });
        Body { name: "layer".to_owned(), input: 8, params, nodes: Vec::new() }
    }

    #[test]
    fn the_append_is_fused_into_attention() {
        let mut list = mixer(false);
        assert!(!rewrite(&mut list, &body(2)), "nothing is prepared there yet");
        assert!(mla_append::rewrite(&mut list));
        assert!(!rewrite(&mut list, &body(4096)), "queries that wide do not fit in threadgroup memory");
        assert!(rewrite(&mut list, &body(2)) && !rewrite(&mut list, &body(2)));
        assert!(
            text(&list).contains(
                "%10 latent_query = per_head_linear transposed 7(%3)\n\
                 %11 latent_heads = mla_attention prologue(%10, %4, %6, %7)\n"
            ),
            "{}",
            text(&list)
        );
    }
}
