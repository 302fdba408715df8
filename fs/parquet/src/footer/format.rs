//! The fields of a footer, as the format has them and the library decodes them.

/// The type of a field.
pub(super) enum Kind {
    Bool,
    I8,
    I16,
    I32,
    I64,
    Double,
    Binary,
    List(&'static Kind),
    Struct(Fields),
    /// The elements of the schema.
    Schema,
}

/// Numbers and types of the fields that the library decodes; it skips others by their type.
pub(super) type Fields = &'static [(i16, Kind)];

use Kind::{Binary, Bool, Double, I8, I16, I32, I64, List, Schema, Struct};

pub(super) const FILE: Fields = &[
    (1, I32),
    (2, Schema),
    (3, I64),
    (4, List(&Struct(ROW_GROUP))),
    (5, List(&Struct(&[(1, Binary), (2, Binary)]))),
    (6, Binary),
    (7, List(&Struct(&[(1, EMPTY), (2, EMPTY), (3, EMPTY)]))),
];
pub(super) const NAME: i16 = 4;
pub(super) const CHILDREN: i16 = 5;
pub(super) const ELEMENT: Fields = &[
    (1, I32),
    (2, I32),
    (3, I32),
    (NAME, Binary),
    (CHILDREN, I32),
    (6, I32),
    (7, I32),
    (8, I32),
    (9, I32),
    (10, Struct(LOGICAL)),
];
const EMPTY: Kind = Struct(&[]);
const TIME: Kind = Struct(&[(1, Bool), (2, Struct(&[(1, EMPTY), (2, EMPTY), (3, EMPTY)]))]);
const LOGICAL: Fields = &[
    (1, EMPTY),
    (2, EMPTY),
    (3, EMPTY),
    (4, EMPTY),
    (5, Struct(&[(1, I32), (2, I32)])),
    (6, EMPTY),
    (7, TIME),
    (8, TIME),
    (10, Struct(&[(1, I8), (2, Bool)])),
    (11, EMPTY),
    (12, EMPTY),
    (13, EMPTY),
    (14, EMPTY),
    (15, EMPTY),
    (16, Struct(&[(1, I8)])),
    (17, Struct(&[(1, Binary)])),
    (18, Struct(&[(1, Binary), (2, I32)])),
    (19, EMPTY),
];
const ROW_GROUP: Fields = &[
    (1, List(&Struct(CHUNK))),
    (2, I64),
    (3, I64),
    (4, List(&Struct(&[(1, I32), (2, Bool), (3, Bool)]))),
    (5, I64),
    (7, I16),
];
const CHUNK: Fields =
    &[(1, Binary), (2, I64), (3, Struct(COLUMN)), (4, I64), (5, I32), (6, I64), (7, I32)];
const COLUMN: Fields = &[
    (1, I32),
    (2, List(&I32)),
    (4, I32),
    (5, I64),
    (6, I64),
    (7, I64),
    (9, I64),
    (10, I64),
    (11, I64),
    (12, Struct(STATISTICS)),
    (13, List(&Struct(&[(1, I32), (2, I32), (3, I32)]))),
    (14, I64),
    (15, I32),
    (16, Struct(&[(1, I64), (2, List(&I64)), (3, List(&I64))])),
    (17, Struct(&[(1, Struct(BOX)), (2, List(&I32))])),
];
/// Bytes of a page when it is decompressed, and as it is in the file.
pub(super) const WHOLE: i16 = 2;
pub(super) const STORED: i16 = 3;
pub(super) const PAGE: Fields = &[
    (1, I32),
    (WHOLE, I32),
    (STORED, I32),
    (4, I32),
    (5, Struct(&[(1, I32), (2, I32), (3, I32), (4, I32), (5, Struct(STATISTICS))])),
    (6, EMPTY),
    (7, Struct(&[(1, I32), (2, I32), (3, Bool)])),
    (
        8,
        Struct(&[
            (1, I32),
            (2, I32),
            (3, I32),
            (4, I32),
            (5, I32),
            (6, I32),
            (7, Bool),
            (8, Struct(STATISTICS)),
        ]),
    ),
];
const STATISTICS: Fields = &[
    (1, Binary),
    (2, Binary),
    (3, I64),
    (4, I64),
    (5, Binary),
    (6, Binary),
    (7, Bool),
    (8, Bool),
    (9, I64),
];
const BOX: Fields = &[
    (1, Double),
    (2, Double),
    (3, Double),
    (4, Double),
    (5, Double),
    (6, Double),
    (7, Double),
    (8, Double),
];

impl Kind {
    /// Whether it is written as this type of Thrift's compact protocol.
    pub(super) fn is(&self, code: u8) -> bool {
        match self {
            Bool => code == 1 || code == 2,
            I8 => code == 3,
            I16 => code == 4,
            I32 => code == 5,
            I64 => code == 6,
            Double => code == 7,
            Binary => code == 8,
            List(_) | Schema => code == 9,
            Struct(_) => code == 12,
        }
    }
}
