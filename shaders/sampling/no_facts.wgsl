// Nobody asks for the facts of a row.

fn see(token: u32, bits: u32) {}

fn leave_facts(row: u32, thread: u32) {}
