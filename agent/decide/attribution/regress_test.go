// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The regression against what must hold of any answer, and against matrices whose numbers are known.

package attribution

import (
	"math"
	"math/rand"
	"testing"
)

func b(is bool) int {
	if is {
		return 1
	}
	return 0
}

// randomNormal makes a regression with true coefficients, some of them zero or negative.
func randomNormal(random *rand.Rand, size, rows int) *normal {
	made := newNormal(size)
	truth, row := make([]float64, size), make([]float64, size)
	for i := range truth {
		truth[i] = 2*random.Float64() - 0.7
	}
	for range rows {
		value := 0.1 * random.NormFloat64()
		for i := range row {
			row[i] = max(0, random.NormFloat64())
			if i > 0 && random.Intn(3) == 0 {
				row[i] = row[i-1] // columns that are much alike
			}
			value += truth[i] * row[i]
		}
		made.add(row, value, 0.5+random.Float64())
	}
	made.mirror()
	return made
}

// The conditions of Karush, Kuhn and Tucker, which the best answer alone meets: no slope where a coefficient is free, and
// none upwards where it is zero.
func TestSolveIsTheBest(t *testing.T) {
	random := rand.New(rand.NewSource(3))
	zeros := 0
	for range 500 {
		n := randomNormal(random, 1+random.Intn(17), 10+random.Intn(200))
		found := n.solve()
		for i := range n.size {
			slope := n.target[i]
			for j := range n.size {
				slope -= n.gram[i*n.size+j] * found[j]
			}
			tolerance := 1e-5 * (math.Abs(n.target[i]) + n.gram[i*n.size+i])
			if found[i] < 0 || found[i] > 0 && math.Abs(slope) > tolerance || found[i] == 0 && slope > tolerance {
				t.Fatalf("coefficient %d of %v has slope %g", i, found, slope)
			}
			zeros += b(found[i] == 0)
		}
	}
	if zeros == 0 {
		t.Error("no coefficient was kept from being negative")
	}
}

// Columns that are the same, and columns of zeros, have an answer all the same.
func TestSolveTheSameColumns(t *testing.T) {
	n := newNormal(4)
	for i := range 40 {
		x := float64(i % 5)
		n.add([]float64{x, x, 0, 1}, 0.6*x+0.1, 1)
	}
	n.mirror()
	found := n.solve()
	if sum := found[0] + found[1]; math.Abs(sum-0.6) > 1e-4 || found[2] != 0 || math.Abs(found[3]-0.1) > 1e-4 {
		t.Errorf("got %v", found)
	}
	if left := n.residual(found); left > 1e-6 {
		t.Errorf("%g is left", left)
	}
	if condition := n.condition(); !math.IsInf(condition, 1) {
		t.Errorf("condition %g, want none", condition)
	}
}

func TestInverseAndCondition(t *testing.T) {
	random := rand.New(rand.NewSource(4))
	for range 100 {
		n := randomNormal(random, 1+random.Intn(12), 200)
		inverse, ok := n.inverse()
		if !ok {
			t.Fatal("no inverse")
		}
		for i := range n.size {
			for j := range n.size {
				sum := 0.0
				for k := range n.size {
					sum += n.gram[i*n.size+k] * inverse[k*n.size+j]
				}
				if want := float64(b(i == j)); math.Abs(sum-want) > 1e-6 {
					t.Fatalf("element %d, %d of the product is %g", i, j, sum)
				}
			}
		}
	}
	for range 100 {
		n := randomNormal(random, 2+random.Intn(12), 40)
		exact, within := n.condition(), n.conditionWithin(10)
		if within < exact*(1-1e-9) || exact >= 10 && within != exact || within >= 10 && within != exact {
			t.Errorf("condition %g, within the limit %g", exact, within)
		}
	}
	// Two columns with a correlation of c: eigenvalues 1 + c and 1 - c.
	for _, c := range []float64{0, 0.5, 0.9, 0.999} {
		n := newNormal(2)
		n.gram = []float64{4, 6 * c, 6 * c, 9}
		if got, want := n.condition(), math.Sqrt((1+c)/(1-c)); math.Abs(got-want) > 1e-6*want {
			t.Errorf("condition of correlation %g: %g, want %g", c, got, want)
		}
	}
	if values := eigenvalues([]float64{2, -1, 0, -1, 2, -1, 0, -1, 2}, 3); math.Abs(values[0]*values[1]*values[2]-4) > 1e-9 {
		t.Errorf("eigenvalues %v, their product should be the determinant, 4", values)
	}
}
