//! Footers written by hand, in Thrift's compact protocol: they may say what no writer would.

/// A struct that is being written.
#[derive(Clone, Default)]
pub struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

impl Struct {
    fn head(mut self, id: u8, code: u8) -> Self {
        self.bytes.push((id - self.last) << 4 | code);
        self.last = id;
        self
    }

    pub fn i32(self, id: u8, value: i64) -> Self {
        self.number(id, 5, value)
    }

    pub fn i64(self, id: u8, value: i64) -> Self {
        self.number(id, 6, value)
    }

    fn number(self, id: u8, code: u8, value: i64) -> Self {
        let mut out = self.head(id, code);
        varint(&mut out.bytes, (value << 1 ^ value >> 63) as u64);
        out
    }

    pub fn text(self, id: u8, text: &str) -> Self {
        let mut out = self.head(id, 8);
        varint(&mut out.bytes, text.len() as u64);
        out.bytes.extend(text.as_bytes());
        out
    }

    pub fn inner(self, id: u8, inner: Struct) -> Self {
        let mut out = self.head(id, 12);
        out.bytes.extend(inner.end());
        out
    }

    pub fn structs(self, id: u8, all: &[Struct]) -> Self {
        let mut out = self.list(id, 12, all.len() as u64);
        all.iter().for_each(|one| out.bytes.extend(one.clone().end()));
        out
    }

    pub fn numbers(self, id: u8, code: u8, all: &[i64]) -> Self {
        let mut out = self.list(id, code, all.len() as u64);
        all.iter().for_each(|&value| varint(&mut out.bytes, (value << 1 ^ value >> 63) as u64));
        out
    }

    /// The head of a list of a type, without its entries.
    pub fn list(self, id: u8, code: u8, count: u64) -> Self {
        let mut out = self.head(id, 9);
        out.bytes.push(0xf0 | code);
        varint(&mut out.bytes, count);
        out
    }

    /// Bytes as they are.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    pub fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// An element of a schema: a group if it has children.
pub fn element(name: &str, repetition: i64, children: Option<i64>) -> Struct {
    let out = match children {
        None => Struct::default().i32(1, 1),
        Some(_) => Struct::default(),
    };
    let out = out.i32(3, repetition).text(4, name);
    children.map_or(out.clone(), |count| out.i32(5, count))
}

/// A footer with this schema and these row groups.
pub fn footer(schema: &[Struct], rows: i64, groups: &[Struct]) -> Vec<u8> {
    Struct::default().i32(1, 1).structs(2, schema).i64(3, rows).structs(4, groups).end()
}

/// A file of this data and footer.
pub fn file(data: &[u8], footer: &[u8]) -> Vec<u8> {
    let len = (footer.len() as u32).to_le_bytes();
    [b"PAR1", data, footer, &len, b"PAR1"].concat()
}

/// The most memory that this process has had, in bytes.
pub fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}
