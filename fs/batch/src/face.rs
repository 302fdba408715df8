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
    /// `.arrow`: an Arrow IPC file of one record batch, the first buffer at a page, each at 64 bytes.
    Arrow,
    /// `.json`: dtype, shape, offsets and record ids.
    Json,
    /// `.txt`: for eyes; shape, dtype, and values abridged.
    Txt,
    /// `.png`: a record that looks like a picture.
    Png,
    /// `.sha256`: the hash of the bare file, as `sha256sum` writes it.
    Sha256,
}

/// How the bytes of a face come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Making {
    /// Arrays gathered into their places in a frame: the size is known from the index alone.
    Gathered,
    /// Text made from the index alone.
    Described,
    /// Made from the bare file as a whole: the size is known when it is there.
    Rendered,
}

impl Face {
    /// All faces, in the order of the documentation.
    pub const ALL: &[Face] = &[
        Face::Bare,
        Face::Npy,
        Face::Safetensors,
        Face::Arrow,
        Face::Json,
        Face::Txt,
        Face::Png,
        Face::Sha256,
    ];

    /// What a file name of this face ends with.
    pub const fn suffix(self) -> &'static str {
        match self {
            Face::Bare => "",
            Face::Npy => ".npy",
            Face::Safetensors => ".safetensors",
            Face::Arrow => ".arrow",
            Face::Json => ".json",
            Face::Txt => ".txt",
            Face::Png => ".png",
            Face::Sha256 => ".sha256",
        }
    }

    /// The face that `suffix` (with its dot, or empty) stands for.
    pub fn of_suffix(suffix: &str) -> Option<Face> {
        Face::ALL.iter().copied().find(|f| f.suffix() == suffix)
    }

    /// How its bytes come about.
    pub const fn making(self) -> Making {
        match self {
            Face::Bare | Face::Npy | Face::Safetensors | Face::Arrow => Making::Gathered,
            Face::Json => Making::Described,
            Face::Txt | Face::Png | Face::Sha256 => Making::Rendered,
        }
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

impl Item {
    /// Whether it can have this face, whatever its dtype and shape.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(self, face: Face) -> Result<(), &'static str> {
        match (self, face) {
            (Item::All, Face::Bare | Face::Npy) => {
                Err("several streams have no single array; take .safetensors or .arrow")
            }
            (Item::All, Face::Txt | Face::Sha256) => {
                Err("there is no bare file of several streams; each stream has this file by itself")
            }
            (Item::Index, Face::Safetensors | Face::Arrow | Face::Json) => {
                Err("an index is bare, .npy, .txt or .sha256")
            }
            (Item::Record(_), Face::Arrow) => Err("only batches are Arrow tables"),
            (Item::Batch(_) | Item::Index | Item::All, Face::Png) => {
                Err("only single records are pictures")
            }
            _ => Ok(()),
        }
    }
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
