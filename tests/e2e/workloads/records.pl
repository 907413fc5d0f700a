# SPDX-License-Identifier: Apache-2.0
# N records in an array of strings and hashes, sorted in windows, rewritten, and indexed by a hash of long values.
# Prints checksums and samples.
use strict;
use warnings;

my $count = shift;
my ($window, @record, %bucket) = (2000);
for my $i (0 .. $count - 1) {
    my $spread = $i * 2654435761 % 4294967296;
    push @record, $i % 16 ? sprintf("%08x %d %s", $spread, $i, "x" x ($spread % 150))
                          : { id => $i, text => "y" x ($spread % 300) };
    my $name = int($i / 64);
    $bucket{$name} .= sprintf("%08x,", $spread);
}
my $sum = 0;
for (my $first = 0; $first < $count; $first += $window) {
    my $last = $first + $window - 1;
    $last = $count - 1 if $last >= $count;
    my @sorted = sort map { ref $_ ? "$_->{id} $_->{text}" : $_ } @record[$first .. $last];
    $sum = ($sum * 31 + unpack("%32C*", $_)) % 1000000007 for @sorted;
    print "$first $sum $sorted[0]\n";
    @record[$first .. $last] = reverse @sorted;
}
for (my $i = 0; $i < $count; $i += 64) {
    my $name = $i / 64;
    $sum = ($sum + length($bucket{$name}) * ($name + 1) + unpack("%32C*", $bucket{$name})) % 1000000007;
    $bucket{$name} = scalar reverse $bucket{$name} if $name % 2;
    delete $bucket{$name} if $name % 5 == 0;
}
print scalar(keys %bucket), " $sum\n";
for my $record (@record) { $sum = ($sum * 31 + length($record) + ord($record)) % 1000000007; }
print "$sum ", join(" ", map { $bucket{$_} } grep { exists $bucket{$_} } 1 .. 9), "\n";
