# Reads a batch through the mount in two ways and compares it to the expected bytes.
# Usage: perl reader.pl BATCH EXPECTED
use strict;
use warnings;

my ($batch, $expected) = @ARGV;

sub slurp {
    my ($path) = @_;
    open my $file, '<:raw', $path or die "$path: $!\n";
    local $/;
    return scalar <$file>;
}

my $wanted = slurp($expected);
slurp($batch) eq $wanted or die "read as a whole, the bytes differ\n";

open my $file, '<:raw', $batch or die "$batch: $!\n";
my $size = -s $file;
my $pieces = '';
for (my $at = $size; $at > 0;) {
    my $length = $at < 4099 ? $at : 4099;
    $at -= $length;
    sysseek $file, $at, 0 or die "seek: $!\n";
    sysread($file, my $piece, $length) == $length or die "a short read at $at\n";
    $pieces = $piece . $pieces;
}
$pieces eq $wanted or die "read backwards in pieces, the bytes differ\n";
print "ok $size\n";
