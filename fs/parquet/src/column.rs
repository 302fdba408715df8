//! Which column holds the tokens, and what its levels mean.

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};
use serde::{Deserialize, Serialize};

/// How wide the stored integers are, and how they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ints {
    /// 32 bits, or less in 32.
    Int32,
    /// 32 bits without a sign.
    UInt32,
    /// 64 bits; each value must fit into an int32.
    Int64,
    /// 64 bits without a sign; each value must fit into an int32.
    UInt64,
    /// The type of a list that has never had an item.
    Null,
}

impl Ints {
    /// Whether 64 bits are stored.
    pub(crate) fn wide(self) -> bool {
        matches!(self, Ints::Int64 | Ints::UInt64)
    }

    /// What gives stored 64 bits as a token, if they are one.
    pub(crate) fn fits(self) -> fn(i64) -> Option<i32> {
        match self {
            Ints::UInt64 => |value| i32::try_from(value as u64).ok(),
            _ => |value| i32::try_from(value).ok(),
        }
    }
}

/// The token column of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Column {
    /// Its number among the leaves of the schema.
    pub(crate) leaf: usize,
    pub(crate) ints: Ints,
    /// The definition level of an item.
    pub(crate) defined: i16,
    /// The least definition level that says that there is an item, though it may be null.
    pub(crate) item: i16,
}

/// Finds the column `name`, in which dots lead into structs.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn find(schema: &SchemaDescriptor, name: &str) -> Result<Column, String> {
    let root = schema.root_schema();
    let mut path = Vec::new();
    let (mut node, mut rest) = (None::<TypePtr>, name);
    while !rest.is_empty() {
        let fields = node.as_deref().unwrap_or(root).get_fields();
        // A name with a dot in it comes before a path.
        let found = fields
            .iter()
            .filter_map(|field| {
                let tail = rest.strip_prefix(field.name())?;
                (tail.is_empty() || tail.starts_with('.')).then_some((field, tail))
            })
            .min_by_key(|(_, tail)| tail.len());
        let Some((field, tail)) = found else {
            let names: Vec<&str> = fields.iter().map(|f| f.name()).collect();
            return Err(format!(
                "has no column {name:?}; there are {}; name another one with --column",
                names.join(", ")
            ));
        };
        let field = field.clone();
        path.push(field.clone());
        rest = tail.strip_prefix('.').unwrap_or(tail);
        let end = field.is_primitive() || is_list(&field);
        node = Some(field);
        if end {
            break;
        }
    }
    let refuse = |what: &str| {
        Err(format!(
            "column {name:?} is {what}, not a list of integers; name another one with --column"
        ))
    };
    let Some(top) = node.filter(|_| rest.is_empty()) else {
        return refuse("not that deep");
    };
    // Down to the leaf: LIST groups have one repeated child, which has the element or is it.
    let mut at = top.clone();
    while at.is_group() {
        let fields = at.get_fields();
        match fields {
            [only] if is_list(&at) || repeated(&at) => at = only.clone(),
            _ => return refuse("a struct or a map"),
        }
        path.push(at.clone());
    }
    let repeats = path.iter().filter(|t| repeated(t)).count();
    if repeats != 1 {
        return refuse(if repeats == 0 { "a plain value" } else { "a list of lists" });
    }
    let parts: Vec<&str> = path.iter().map(|t| t.name()).collect();
    let leaf = schema
        .columns()
        .iter()
        .position(|c| c.path().parts().iter().map(String::as_str).eq(parts.iter().copied()));
    let Some(leaf) = leaf else { return refuse("not a column") };
    // Each optional or repeated node on the way adds a level.
    let mut level = 0;
    let mut item = 0;
    for node in &path {
        level += i16::from(!required(node));
        if repeated(node) {
            item = level;
        }
    }
    let ints = ints(&at).map_err(|what| {
        format!(
            "column {name:?} is a list of {what}; tokens are integers of 8 to 64 bits: cast it, or name another column with --column"
        )
    })?;
    Ok(Column { leaf, ints, defined: level, item })
}

fn repetition(node: &Type) -> Option<Repetition> {
    let info = node.get_basic_info();
    info.has_repetition().then(|| info.repetition())
}

fn repeated(node: &Type) -> bool {
    repetition(node) == Some(Repetition::REPEATED)
}

fn required(node: &Type) -> bool {
    repetition(node) == Some(Repetition::REQUIRED)
}

fn is_list(node: &Type) -> bool {
    let info = node.get_basic_info();
    info.logical_type_ref() == Some(&LogicalType::List)
        || info.converted_type() == ConvertedType::LIST
}

/// How the values of a leaf are read; if not at all, what they are.
fn ints(leaf: &Type) -> Result<Ints, String> {
    let info = leaf.get_basic_info();
    let physical = leaf.get_physical_type();
    let unsigned = matches!(
        info.converted_type(),
        ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64
    );
    let plain = matches!(
        info.converted_type(),
        ConvertedType::NONE
            | ConvertedType::INT_8
            | ConvertedType::INT_16
            | ConvertedType::INT_32
            | ConvertedType::INT_64
    );
    let logical = info.logical_type_ref();
    if logical == Some(&LogicalType::Unknown) {
        return Ok(Ints::Null);
    }
    let integer = matches!(logical, None | Some(LogicalType::Integer(_)));
    match (physical, integer && (plain || unsigned)) {
        // Fewer bits than 32 fit into an int32 whatever their sign.
        (Physical::INT32, true) if info.converted_type() == ConvertedType::UINT_32 => {
            Ok(Ints::UInt32)
        }
        (Physical::INT32, true) => Ok(Ints::Int32),
        (Physical::INT64, true) => Ok(if unsigned { Ints::UInt64 } else { Ints::Int64 }),
        _ => Err(match logical {
            Some(logical) => {
                let shown = format!("{logical:?}");
                let name = shown.split('(').next().unwrap_or_default();
                format!("{physical} ({name})").to_lowercase()
            }
            None => physical.to_string().to_lowercase(),
        }),
    }
}
