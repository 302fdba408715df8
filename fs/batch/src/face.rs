use std::fmt;

/// The form in which an item is delivered: what follows its number in a file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Face {
    /// No suffix: the arrays' bytes, C order, little-endian, nothing else.
    Bare,
    /// `.npy`: one array with NumPy's header, padded so that the data starts at a page.
    Npy,
    /// `.safetensors`: named tensors, the first one at a page, each at 64 bytes.
    Safetensors,
    /// `.json`: dtype, shape, offsets and record ids.
    Json,
}

impl Face {
    /// All faces, in the order of the documentation.
    pub const ALL: &[Face] = &[Face::Bare, Face::Npy, Face::Safetensors, Face::Json];

    /// What a file name of this face ends with.
    pub const fn suffix(self) -> &'static str {
        match self {
            Face::Bare => "",
            Face::Npy => ".npy",
            Face::Safetensors => ".safetensors",
            Face::Json => ".json",
        }
    }

    /// The face that `suffix` (with its dot, or empty) stands for.
    pub fn of_suffix(suffix: &str) -> Option<Face> {
        Face::ALL.iter().copied().find(|f| f.suffix() == suffix)
    }
}

/// What is numbered: batches and indices by step, records by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Item {
    /// The batch of a step of the stream with this number.
    Batch(u16),
    /// One record of the stream with this number.
    Record(u16),
    /// The record ids of a step, uint64, the same for all streams.
    Index,
    /// The batches of a step of all streams together.
    All,
}

/// Names one region: everything that a path says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Number of the view, see [`View::number`](crate::View::number).
    pub view: u16,
    /// Batch, record, index or all, and of which stream.
    pub item: Item,
    /// In which form.
    pub face: Face,
    /// Step or record id.
    pub number: u64,
}

impl fmt::Display for Face {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Face::Bare => "bare",
            other => &other.suffix()[1..],
        })
    }
}
