// Of a temperature that rows share: sums.wgsl adds up what they add.

fn store_term(row: u32, term: f32) {
    kept[kept_at(row, KEPT_T)] = bitcast<u32>(term);
}
