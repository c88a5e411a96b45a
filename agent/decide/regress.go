// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A small linear regression with coefficients that are not negative, and what it is worth: how far each coefficient can be
// wrong, and how well the columns can be told apart.

package decide

import "math"

// Bounds of the solver. It is for some sixteen columns.
const (
	sweepsMost = 2000
	sweepsEnd  = 1e-9 // change of a coefficient, below which it is done
	turnsMost  = 30   // of Jacobi's method
	smallest   = 1e-12
)

// normal is the normal equations of a regression: gram times coefficients is target. Rows are weighted.
type normal struct {
	size   int
	gram   []float64 // size × size, symmetric
	target []float64
	square float64 // of the observed values, weighted
	weight float64
	rows   int
}

func newNormal(size int) *normal {
	return &normal{size: size, gram: make([]float64, size*size), target: make([]float64, size)}
}

// add takes in a row.
func (n *normal) add(row []float64, value, weight float64) {
	for i, x := range row {
		if x == 0 {
			continue
		}
		n.target[i] += weight * x * value
		for j := i; j < n.size; j++ {
			n.gram[i*n.size+j] += weight * x * row[j]
		}
	}
	n.square += weight * value * value
	n.weight += weight
	n.rows++
}

// mirror fills the lower half in, after the last row.
func (n *normal) mirror() {
	for i := range n.size {
		for j := range i {
			n.gram[i*n.size+j] = n.gram[j*n.size+i]
		}
	}
}

// expect adds that a coefficient is about so much, with the weight of so many rows in which its column is one.
func (n *normal) expect(i int, value, weight float64) {
	n.gram[i*n.size+i] += weight
	n.target[i] += weight * value
	n.square += weight * value * value
}

// clone copies it.
func (n *normal) clone() *normal {
	next := *n
	next.gram, next.target = append([]float64(nil), n.gram...), append([]float64(nil), n.target...)
	return &next
}

// solve finds the coefficients, none negative, with the least squares, by coordinate descent: the problem is convex, so it
// gets there; and it needs no case for columns that are the same.
func (n *normal) solve(start []float64) []float64 {
	found := make([]float64, n.size)
	copy(found, start)
	for range sweepsMost {
		change := 0.0
		for i := range n.size {
			diagonal := n.gram[i*n.size+i]
			if diagonal <= smallest {
				found[i] = 0
				continue
			}
			rest := n.target[i]
			for j, coefficient := range found {
				rest -= n.gram[i*n.size+j] * coefficient
			}
			next := max(0, found[i]+rest/diagonal)
			change = max(change, math.Abs(next-found[i]))
			found[i] = next
		}
		if change < sweepsEnd {
			break
		}
	}
	return found
}

// residual is the weighted sum of squares that coefficients leave.
func (n *normal) residual(coefficients []float64) float64 {
	sum := n.square
	for i, a := range coefficients {
		sum -= 2 * a * n.target[i]
		for j, b := range coefficients {
			sum += a * b * n.gram[i*n.size+j]
		}
	}
	return max(0, sum)
}

// inverse inverts the matrix; ok is false where it has none.
func (n *normal) inverse() (inverse []float64, ok bool) {
	size := n.size
	lower := make([]float64, size*size)
	for i := range size {
		for j := range i + 1 {
			sum := n.gram[i*size+j]
			for k := range j {
				sum -= lower[i*size+k] * lower[j*size+k]
			}
			if i != j {
				lower[i*size+j] = sum / lower[j*size+j]
				continue
			}
			if sum <= smallest*max(1, n.gram[i*size+i]) {
				return nil, false
			}
			lower[i*size+i] = math.Sqrt(sum)
		}
	}
	inverse = make([]float64, size*size)
	column := make([]float64, size)
	for c := range size {
		for i := range size {
			sum := 0.0
			if i == c {
				sum = 1
			}
			for k := range i {
				sum -= lower[i*size+k] * column[k]
			}
			column[i] = sum / lower[i*size+i]
		}
		for i := size - 1; i >= 0; i-- {
			sum := column[i]
			for k := i + 1; k < size; k++ {
				sum -= lower[k*size+i] * column[k]
			}
			column[i] = sum / lower[i*size+i]
		}
		for i := range size {
			inverse[i*size+c] = column[i]
		}
	}
	return inverse, true
}

// condition is the condition number of the columns, each scaled to length one: how much worse the worst mixture of them is
// seen than the best; infinite where one cannot be told from the others.
func (n *normal) condition() float64 {
	size := n.size
	m := make([]float64, size*size)
	for i := range size {
		for j := range size {
			scale := math.Sqrt(n.gram[i*size+i] * n.gram[j*size+j])
			if scale <= smallest {
				return math.Inf(1)
			}
			m[i*size+j] = n.gram[i*size+j] / scale
		}
	}
	least, most := math.Inf(1), 0.0
	for _, value := range eigenvalues(m, size) {
		least, most = min(least, value), max(most, value)
	}
	if least <= smallest {
		return math.Inf(1)
	}
	return math.Sqrt(most / least)
}

// eigenvalues are those of a symmetric matrix, by Jacobi's method; the matrix is used up.
func eigenvalues(m []float64, size int) []float64 {
	for range turnsMost {
		off := 0.0
		for p := range size {
			for q := p + 1; q < size; q++ {
				off += m[p*size+q] * m[p*size+q]
				rotate(m, size, p, q)
			}
		}
		if off < smallest*smallest {
			break
		}
	}
	values := make([]float64, size)
	for i := range size {
		values[i] = m[i*size+i]
	}
	return values
}

// rotate makes one element off the diagonal zero.
func rotate(m []float64, size, p, q int) {
	off := m[p*size+q]
	if math.Abs(off) < smallest*smallest {
		return
	}
	theta := (m[q*size+q] - m[p*size+p]) / (2 * off)
	t := 1 / (math.Abs(theta) + math.Sqrt(theta*theta+1))
	if theta < 0 {
		t = -t
	}
	c := 1 / math.Sqrt(t*t+1)
	s := t * c
	for k := range size {
		a, b := m[k*size+p], m[k*size+q]
		m[k*size+p], m[k*size+q] = c*a-s*b, s*a+c*b
	}
	for k := range size {
		a, b := m[p*size+k], m[q*size+k]
		m[p*size+k], m[q*size+k] = c*a-s*b, s*a+c*b
	}
}
