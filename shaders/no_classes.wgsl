// Stands in for classes.wgsl where tiles are not classified. Never called.

struct TileClass {
    seen: bool,
    hidden: bool,
}

fn tile_class(seq: Sequence, h: u32, first_row: u32, first_key: u32) -> TileClass {
    return TileClass(true, true);
}
