use std::fmt;
use std::str::FromStr;

macro_rules! dtypes {
    ($($variant:ident $name:literal $size:literal $npy:expr;)*) => {
        /// The type of one element of a record. Always little-endian, in memory and on disk.
        ///
        /// The names are those of NumPy and of the `ml_dtypes` package.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DType { $(#[doc = concat!("`", $name, "`, ", $size, " bytes")] $variant,)* }

        impl DType {
            /// Every dtype there is, in the order of the documentation.
            pub const ALL: &[DType] = &[$(DType::$variant),*];

            /// The canonical name, such as `float32`.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name),* }
            }

            /// Bytes per element.
            pub const fn size(self) -> usize {
                match self { $(DType::$variant => $size),* }
            }

            /// The `descr` that NumPy's `.npy` format has for it (NEP 1), or `None` where NumPy
            /// itself has no such type and a file would lose it.
            pub const fn npy_descr(self) -> Option<&'static str> {
                match self { $(DType::$variant => $npy),* }
            }
        }
    };
}

dtypes! {
    Bool "bool" 1 Some("|b1");
    Int8 "int8" 1 Some("|i1");
    Int16 "int16" 2 Some("<i2");
    Int32 "int32" 4 Some("<i4");
    Int64 "int64" 8 Some("<i8");
    UInt8 "uint8" 1 Some("|u1");
    UInt16 "uint16" 2 Some("<u2");
    UInt32 "uint32" 4 Some("<u4");
    UInt64 "uint64" 8 Some("<u8");
    Float16 "float16" 2 Some("<f2");
    Float32 "float32" 4 Some("<f4");
    Float64 "float64" 8 Some("<f8");
    BFloat16 "bfloat16" 2 None;
    Complex64 "complex64" 8 Some("<c8");
    Complex128 "complex128" 16 Some("<c16");
    Float8E4M3FN "float8_e4m3fn" 1 None;
    Float8E4M3FNUZ "float8_e4m3fnuz" 1 None;
    Float8E5M2 "float8_e5m2" 1 None;
    Float8E5M2FNUZ "float8_e5m2fnuz" 1 None;
    Float8E8M0FNU "float8_e8m0fnu" 1 None;
}

/// A dtype name that batchfs does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype {0:?}; there are {names}", names = DType::ALL.iter().map(|d| d.name()).collect::<Vec<_>>().join(", "))]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(name: &str) -> Result<Self, UnknownDType> {
        DType::ALL
            .iter()
            .copied()
            .find(|d| d.name() == name)
            .ok_or_else(|| UnknownDType(name.to_owned()))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl serde::Serialize for DType {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

impl<'de> serde::Deserialize<'de> for DType {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_list_what_there_is() {
        for d in DType::ALL {
            assert_eq!(d.name().parse::<DType>(), Ok(*d));
        }
        let said = "float31".parse::<DType>().unwrap_err().to_string();
        assert!(said.contains("float31") && said.contains("float8_e8m0fnu"), "{said}");
    }
}
